"""Tensor primitives under the planner and the layers. Complex values are real tensors with a last axis of 2."""
