"""A live server for exported models over WebSocket: many streams, batched on one core. Needs the ``serve`` extra."""
