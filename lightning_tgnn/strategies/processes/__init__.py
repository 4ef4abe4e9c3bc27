"""How the ranks of a run start and end."""
