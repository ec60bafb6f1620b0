"""Batch generation of mlx-lm 0.31.3, mended: each sequence keeps its own processors.

There a batch whose sequences all have none keeps its list as long as it was when they
end, so the processors of later sequences are applied to none or to others; and a prompt
that waits beside one with processors gets None for a list, which ends the generation
thread. Later versions have neither fault.
"""

from __future__ import annotations

import functools
from types import ModuleType


def patch(module: ModuleType) -> None:
    """Mend mlx_lm.generate of 0.31.3."""
    generation, prompts = module.GenerationBatch, module.PromptProcessingBatch
    stock_filter, stock_extend = generation.filter, prompts.extend

    @functools.wraps(stock_filter)
    def filter(self, keep):
        stock_filter(self, keep)
        if not any(self.logits_processors):
            self.logits_processors = [[] for _ in keep]

    @functools.wraps(stock_extend)
    def extend(self, batch):
        stock_extend(self, batch)
        self.logits_processors = [p or [] for p in self.logits_processors]

    generation.filter = filter
    prompts.extend = extend
