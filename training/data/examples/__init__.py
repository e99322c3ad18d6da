"""Examples to fine-tune on, from chats, prompts or text to packed samples; imports no torch."""
