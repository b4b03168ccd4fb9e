"""What a person looks at. Imports model/attention.py and model/system."""
