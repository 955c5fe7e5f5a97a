"""Where state lives: the ports, and the one production store."""
