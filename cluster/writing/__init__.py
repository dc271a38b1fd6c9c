"""The rows of the result and the files that hold them, each made once and whole. Knows no Ray and no worker."""
