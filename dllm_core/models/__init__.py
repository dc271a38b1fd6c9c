"""Model families: the arithmetic of one layer on N rows, loaded from published checkpoint layouts."""
