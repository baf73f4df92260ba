"""What policies need that choose by a program: the solver. It must not know any policy."""
