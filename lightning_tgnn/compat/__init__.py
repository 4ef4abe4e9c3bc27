"""The only folder that touches private names of Lightning, replaces its methods or repairs what it does."""
