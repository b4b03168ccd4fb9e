"""What a person looks at: maps, the attention page; checks of edited networks."""
