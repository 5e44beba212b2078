"""What makes it fast."""
