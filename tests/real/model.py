"""Writes a tiny Llama with random weights, its tokenizer and a chat template: model.py FOLDER [LAYERS]."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROLES = ("user", "assistant", "system")
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of about 300 tokens, able to encode any text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<|{role}|>" for role in ROLES)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(["one host, one engine, one service: switched and put back"], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def llama(layers: int) -> LlamaForCausalLM:
    """The model; the seed makes its weights the same every time."""
    torch.manual_seed(20)
    config = LlamaConfig(
        vocab_size=320,  # a multiple of 64, as SGLang's tensor parallelism pads to
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0])
    layers = int(arguments[1]) if len(arguments) > 1 else 2
    tokenizer().save_pretrained(folder)
    llama(layers).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
