"""The attention page, and TensorBoard's images of attention."""
