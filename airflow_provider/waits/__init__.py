"""The waits that operators, sensors and triggers share: looks at a home, and the decisions that follow from them."""
