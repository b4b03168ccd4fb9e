"""What a person looks at: the attention page, TensorBoard's maps."""
