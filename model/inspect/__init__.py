"""What a person looks at: reports, maps, the attention page."""
