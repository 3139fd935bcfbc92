"""Operations that users call: collectives, send and recv, objects."""
