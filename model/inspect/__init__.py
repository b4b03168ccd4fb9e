"""What a person looks at. Imports the network, model/run; train.py, sample.py import it."""
