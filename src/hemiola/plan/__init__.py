"""One job's brain: in which order tensors go, what goes together, how it is reduced. Graph in, plan out."""
