"""The float64 truth, inputs that tell a right kernel from a wrong one, and the error allowed."""
