"""From input files to requests: files, their rows, and the prompts in them. Knows no Ray, no result and no worker."""
