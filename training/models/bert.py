"""BERT with its two pre-training heads: transformers' model built on meta, our initial values, its losses."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertForPreTraining

from training.config import Config
from training.models.causal import check_count, named_parameters
from training.models.head import IGNORE
from training.models.init import fill_normal
from training.task import Trainable


def hf_config(config: Config, attention: str = "eager") -> BertConfig:
    model, shape = config.model, config.model.bert
    assert shape is not None
    return BertConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        tie_word_embeddings=model.tie_word_embeddings,
        attention_probs_dropout_prob=model.attention_dropout,
        hidden_dropout_prob=shape.hidden_dropout,
        initializer_range=model.initializer_range,
        max_position_embeddings=shape.max_position_embeddings,
        type_vocab_size=shape.type_vocab_size,
        layer_norm_eps=shape.layer_norm_eps,
        attn_implementation=attention,
    )


class PretrainingBert(Trainable):
    """BERT that returns the sums of its two losses: masked words and next sentence.

    Only the masked positions, a fixed number per sample (20 of 128), are multiplied by the word table.
    """

    def __init__(self, config: Config, attention: str) -> None:
        super().__init__()
        self.attention = attention
        self.hf = BertForPreTraining(hf_config(config, attention))
        self.word_loss = summed_word_loss

    def blocks(self) -> list[nn.Module]:
        return list(self.hf.bert.encoder.layer)

    def compile_outside(self) -> None:
        """Compile the word table's product and its loss together."""
        self.word_loss = torch.compile(self.word_loss, fullgraph=True)

    def tie(self) -> None:
        """Tie parameters that are the same: leaving meta gives each module its own tensor."""
        predictions = self.hf.cls.predictions
        predictions.decoder.bias = predictions.bias
        if self.hf.config.tie_word_embeddings:
            predictions.decoder.weight = self.hf.bert.embeddings.word_embeddings.weight

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        masked_positions: torch.Tensor,
        masked_labels: torch.Tensor,
        next_sentence_label: torch.Tensor,
    ) -> torch.Tensor:
        """Sums in nats over masked words and over pairs, fp32 [2]; the label IGNORE does not count.

        input_ids, token_type_ids, attention_mask: int64 [batch, sequence]; the mask is 1 for a token.
        masked_positions, masked_labels: int64 [batch, most]. next_sentence_label: int64 [batch], 1 if the
        second sentence comes from elsewhere.
        """
        hidden, pooled = self.encode(input_ids, token_type_ids, attention_mask)
        places = masked_positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        predictions = self.hf.cls.predictions
        words = self.word_loss(
            predictions.transform(hidden.gather(1, places)),
            predictions.decoder.weight,
            predictions.bias,
            masked_labels,
        )
        following = functional.cross_entropy(
            self.hf.cls.seq_relationship(pooled).float(),
            next_sentence_label,
            ignore_index=IGNORE,
            reduction="sum",
        )
        return torch.stack([words, following])

    def encode(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [batch, sequence, hidden] and the pooled first token [batch, hidden]."""
        with self.keeping():
            encoded = self.hf.bert(
                input_ids=input_ids,
                token_type_ids=token_type_ids,
                attention_mask=padding_mask(attention_mask, self.attention),
            )
        return encoded.last_hidden_state, encoded.pooler_output


def summed_word_loss(
    hidden: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Cross-entropy summed over labelled positions; softmax and sum are in fp32 for any matmul precision."""
    logits = functional.linear(hidden, table, bias).float()
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")


def padding_mask(attention_mask: torch.Tensor, attention: str) -> torch.Tensor:
    """The attention mask that allows every token but no padding, in a shape that transformers passes through.

    [batch, 1, 1, sequence]; additive for eager attention, boolean for sdpa. It is made here because
    transformers would inspect a plain mask to see whether it can be dropped, which waits for the device.
    """
    allowed = attention_mask[:, None, None, :].bool()
    if attention == "sdpa":
        return allowed
    blocked = torch.finfo(torch.bfloat16).min
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, blocked)


def build_on_meta(config: Config, attention: str) -> PretrainingBert:
    """Build the model without memory, and check its parameter count against the configuration's."""
    with torch.device("meta"):
        model = PretrainingBert(config, attention)
    model.tie()
    check_count(model, config)
    return model


def initialise(model: PretrainingBert, config: Config, device: torch.device) -> None:
    """Give memory and values to every parameter and buffer of a model on meta, sharded or not.

    As in BERT's own code: matrices and tables are normal with `initializer_range`, biases 0, norms 1. The
    first loss is then ln(vocabulary) + ln 2 + half the variance of the first logits, hidden size x range^2.
    """
    model.to_empty(device=device)
    model.tie()
    with torch.no_grad():
        for name, parameter in named_parameters(model):
            if name.endswith("LayerNorm.weight"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                fill_normal(name, parameter, config.train.seed, config.model.initializer_range)
        _fill_buffers(model)


def _fill_buffers(model: PretrainingBert) -> None:
    known = {"hf.bert.embeddings.position_ids", "hf.bert.embeddings.token_type_ids"}
    buffers = dict(model.named_buffers())
    if buffers.keys() != known:
        raise AssertionError(f"buffers {sorted(buffers.keys() ^ known)} have no rule that initialises them")
    positions = buffers["hf.bert.embeddings.position_ids"]
    positions.copy_(torch.arange(positions.shape[-1]).expand(1, -1))
    buffers["hf.bert.embeddings.token_type_ids"].zero_()
