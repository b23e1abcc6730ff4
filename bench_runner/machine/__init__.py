"""What machine this is: gathers values, judges none of them here (``checks`` does)."""
