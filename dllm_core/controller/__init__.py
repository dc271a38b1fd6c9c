"""Small trained networks that decide which positions are fixed: what they see, what they are, and their folder."""
