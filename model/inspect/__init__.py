"""What a person looks at. Imports model/attention.py, model/run; train.py, sample.py import it."""
