"""The stand-in's own modules; everything else in this package lies where SGLang has it."""
