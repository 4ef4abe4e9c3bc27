"""What need not travel, and in which pieces the rest does."""
