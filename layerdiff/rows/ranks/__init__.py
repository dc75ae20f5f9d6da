"""What many ranks hold and send, as lines."""
