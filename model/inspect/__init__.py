"""What a person looks at: recorded attention, the attention page, images, a chart of the loss.

Imports the network and run/. Only train.py and sample.py import it.
"""
