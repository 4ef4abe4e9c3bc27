"""Event streams and what is known of them."""
