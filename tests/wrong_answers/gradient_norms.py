"""Answers to lesson 04 as learners write them: right ones, and wrong ones with the hint that each must get."""

import torch
import torch.distributed as dist
from torch.nn.utils import get_total_norm

from labs.checks.reference.gradient_norms import global_grad_norm, token_loss


def stack(steps=None, data=None, strategy=None, **changes):
    """deep_stack that changes fields of the config, or switches of its model."""
    switches = {name: changes.pop(name) for name in ("residual", "norm", "init_scale", "num_layers") if name in changes}
    fields = {name: value for name, value in {"steps": steps, "strategy": strategy, **changes}.items() if value}

    def deep_stack(config):
        return config.replace(model=config.model.replace(**switches), **fields)

    return deep_stack


def stack_of_a_spec(config):
    return config.model.replace(residual=True, norm=True)


def squares(shards):
    return sum((shard.double().square().sum() for shard in shards), torch.zeros((), dtype=torch.float64))


def norm_in_double(shards):
    total = squares(shards)
    dist.all_reduce(total)
    return float(total.sqrt())


def norm_of_norms(shards):
    own = get_total_norm([shard.float() for shard in shards]) if shards else torch.zeros(())
    total = own**2
    dist.all_reduce(total)
    return total**0.5


def norm_by_gathering_numbers(shards):
    norms = [torch.zeros((), dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, squares(shards))
    return torch.stack(norms).sum().sqrt()


def norm_from(of_rank, over_ranks=dist.ReduceOp.SUM, root=lambda total: total.sqrt()):
    """global_grad_norm from a number of this rank, an operation over ranks, and what is done at the end."""

    def global_grad_norm(shards):
        number = of_rank(shards).float().reshape(())
        if over_ranks is not None:
            dist.all_reduce(number, op=over_ranks)
        return root(number)

    return global_grad_norm


def same(number):
    return number


def mean_root(total):
    return (total / dist.get_world_size()).sqrt()


def tensor_norms(shards):
    return sum((shard.double().norm() for shard in shards), torch.zeros(()))


def squares_in_bf16(shards):
    return sum((shard.square().sum() for shard in shards), torch.zeros((), dtype=shards[0].dtype if shards else None))


def largest_element(shards):
    return max((shard.abs().max().float() for shard in shards if shard.numel()), default=torch.zeros(()))


def norm_by_gathering(shards):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, shards)
    return torch.stack([squares(own) for own in everything]).sum().sqrt()


def norm_by_summing_a_padded_whole(shards):
    whole, rank = torch.zeros(dist.get_world_size(), 2000), dist.get_rank()
    flat = torch.cat([torch.zeros(0), *(shard.float().flatten() for shard in shards)])
    whole[rank, : len(flat)] = flat
    dist.all_reduce(whole)
    return whole.norm()


def norm_a_call_a_tensor(shards):
    counts = torch.tensor(len(shards))
    dist.all_reduce(counts, op=dist.ReduceOp.MAX)
    total = torch.zeros(())
    for index in range(int(counts)):
        square = shards[index].float().square().sum() if index < len(shards) else torch.zeros(())
        dist.all_reduce(square)
        total += square
    return total.sqrt()


def norm_with_python_zero(shards):
    total = torch.as_tensor(sum(shard.float().square().sum() for shard in shards))
    dist.all_reduce(total)
    return total.sqrt()


def norm_of_a_stack(shards):
    total = torch.stack([shard.float().square().sum() for shard in shards]).sum()
    dist.all_reduce(total)
    return total.sqrt()


def norm_of_a_cat(shards):
    total = torch.cat([shard.float().flatten() for shard in shards]).square().sum()
    dist.all_reduce(total)
    return total.sqrt()


def norm_that_leaves_early(shards):
    return global_grad_norm(shards) if shards else torch.zeros(())


def norm_that_asks_the_first(shards):
    total = torch.zeros((), device=shards[0].device)
    for shard in shards:
        total += shard.float().square().sum()
    dist.all_reduce(total)
    return total.sqrt()


def norm_of_the_mean_square(shards):
    sums = torch.stack([squares(shards), torch.tensor(float(sum(s.numel() for s in shards)), dtype=torch.float64)])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).sqrt()


def norm_in_place(shards):
    total = sum((shard.square_().float().sum() for shard in shards), torch.zeros(()))
    dist.all_reduce(total)
    return total.sqrt()


def norm_without_inf(shards):
    total = sum((shard.float().nan_to_num(posinf=0).square().sum() for shard in shards), torch.zeros(()))
    dist.all_reduce(total)
    return total.sqrt()


def norm_of_rank_0(shards):
    total = squares(shards).float()
    dist.broadcast(total, 0)
    return total.sqrt()


def norm_as_a_list(shards):
    return [float(global_grad_norm(shards)), float(squares(shards))]


def clip(
    unscale="first", norm=global_grad_norm, factor=lambda limit, norm: min(1.0, limit / (norm + 1e-6)), gives=None
):
    """clip_ with one thing done otherwise."""

    def clip_(shards, max_norm, loss_scale=1.0):
        if unscale == "first":
            for shard in shards:
                shard.div_(loss_scale)
        length = float(norm(shards))
        used = length / loss_scale if unscale == "in the norm" else length
        for shard in shards:
            shard.mul_(factor(max_norm, used))
            if unscale in ("last", "in the norm"):
                shard.div_(loss_scale)
        return gives(used, max_norm, loss_scale) if gives else used

    return clip_


def clip_scaled_to_a_scaled_limit(shards, max_norm, loss_scale=1.0):
    norm = global_grad_norm(shards)
    for shard in shards:
        shard *= min(1.0, max_norm * loss_scale / float(norm + 1e-6)) / loss_scale
    return norm / loss_scale


def local_norm(shards):
    return squares(shards).sqrt()


def clip_each_tensor(shards, max_norm, loss_scale=1.0):
    for shard in shards:
        shard /= loss_scale
    norm = global_grad_norm(shards)
    for shard in shards:
        if shard.norm() > max_norm:
            shard *= max_norm / shard.norm()
    return norm


def clip_elements(shards, max_norm, loss_scale=1.0):
    for shard in shards:
        shard /= loss_scale
    norm = global_grad_norm(shards)
    for shard in shards:
        shard.clamp_(-max_norm, max_norm)
    return norm


def clip_copies(shards, max_norm, loss_scale=1.0):
    shards = [shard / loss_scale for shard in shards]
    norm = global_grad_norm(shards)
    if norm > max_norm:
        shards = [shard * (max_norm / norm) for shard in shards]
    return norm


def clip_rebound(shards, max_norm, loss_scale=1.0):
    for shard in shards:
        shard /= loss_scale
    norm = global_grad_norm(shards)
    for shard in shards:
        shard = shard * min(1.0, max_norm / float(norm + 1e-6))
    return norm


def clip_of_nothing_divides(shards, max_norm, loss_scale=1.0):
    for shard in shards:
        shard /= loss_scale
    norm = float(global_grad_norm(shards))
    factor = min(1.0, max_norm / norm)
    for shard in shards:
        shard *= factor
    return norm


def clip_to_nan(shards, max_norm, loss_scale=1.0):
    for shard in shards:
        shard /= loss_scale
    norm = global_grad_norm(shards)
    for shard in shards:
        shard *= torch.minimum(norm, torch.tensor(max_norm)) / norm
    return norm


def clip_by_other_memory(shards, max_norm, loss_scale=1.0):
    """The tensors are the same, the memory is not: a flat buffer of which they were views stays as it was."""
    for shard in shards:
        shard.data = shard / loss_scale
    norm = global_grad_norm(shards)
    for shard in shards:
        shard.data = shard * min(1.0, max_norm / float(norm + 1e-6))
    return norm


def clip_without_nan(shards, max_norm, loss_scale=1.0):
    for shard in shards:
        torch.nan_to_num_(shard, nan=0.0)
    return clip()(shards, max_norm, loss_scale)


def clip_by_parameters(shards, max_norm, loss_scale=1.0):
    """Right: torch's own clipping, told the norm."""
    parameters = [torch.nn.Parameter(torch.empty_like(shard)) for shard in shards]
    for parameter, shard in zip(parameters, shards, strict=True):
        parameter.grad = shard.div_(loss_scale)
    norm = global_grad_norm([parameter.grad for parameter in parameters])
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def clip_by_torch_alone(shards, max_norm, loss_scale=1.0):
    for shard in shards:
        shard /= loss_scale
    return torch.nn.utils.clip_grad_norm_(shards, max_norm)


def clip_gathering(shards, max_norm, loss_scale=1.0):
    return clip(norm=norm_by_gathering)(shards, max_norm, loss_scale)


def count_of_all(is_real):
    count = is_real.sum()
    dist.all_reduce(count)
    return count


def loss_weighted(token_losses, is_real):
    own, total = is_real.sum(), count_of_all(is_real)
    mean = token_losses[is_real].mean() if own else (token_losses * 0).sum()
    return mean * own * dist.get_world_size() / total


def loss_that_leaves_early(token_losses, is_real):
    if not is_real.any():
        return (token_losses * 0).sum()
    return token_loss(token_losses, is_real)


def loss_without_a_token_skips(token_losses, is_real):
    mean_count = is_real.sum().float()
    dist.all_reduce(mean_count)
    mean_count /= dist.get_world_size()
    return token_losses.masked_fill(~is_real, 0).sum() / mean_count


def loss_mean_of_means(token_losses, is_real):
    return (token_losses * is_real).sum() / is_real.sum().clamp(min=1)


def loss_divides_zero(token_losses, is_real):
    return token_losses[is_real].mean()


def loss_weighted_divides_zero(token_losses, is_real):
    """The gradients are right: no token, no gradient. The loss of the rank without one is nan."""
    own, total = is_real.sum(), count_of_all(is_real)
    return token_losses[is_real].mean() * own * dist.get_world_size() / total


def loss_of_padding_too(token_losses, is_real):
    return token_losses.mean()


def loss_sum(token_losses, is_real):
    return token_losses[is_real].sum()


def loss_divided_twice(token_losses, is_real):
    return token_losses[is_real].sum() / count_of_all(is_real)


def loss_reduced_too(token_losses, is_real):
    total = token_losses[is_real].sum()
    dist.all_reduce(total.detach())
    return total / count_of_all(is_real)


def loss_counts_padding(token_losses, is_real):
    return (token_losses * is_real).sum() * dist.get_world_size() / count_of_all(torch.ones_like(is_real))


def loss_by_samples(token_losses, is_real):
    return ((token_losses * is_real).sum(1) / is_real.sum(1).clamp(min=1)).mean()


def loss_a_sample(token_losses, is_real):
    count = torch.tensor(float(len(is_real)))
    dist.all_reduce(count)
    return (token_losses * is_real).sum() * dist.get_world_size() / count


def loss_all_reduced_with_its_gradient(token_losses, is_real):
    from torch.distributed.nn import functional

    return functional.all_reduce((token_losses * is_real).sum()) / count_of_all(is_real)


def loss_detached(token_losses, is_real):
    return torch.tensor(float(token_loss(token_losses, is_real)))


def loss_of_each_token(token_losses, is_real):
    return token_losses * is_real / count_of_all(is_real)


def loss_gathering(token_losses, is_real):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, (token_losses.detach(), is_real))
    count = sum(own.sum() for _, own in everything)
    return (token_losses * is_real).sum() * dist.get_world_size() / count


RIGHT = [
    ("gradient_norms.deep_stack", stack(residual=True, init_scale=0.25)),
    ("gradient_norms.deep_stack", stack(residual=True, norm=True, init_scale=0.5, max_grad_norm=1.0, warmup_steps=10)),
    ("gradient_norms.global_grad_norm", norm_in_double),
    ("gradient_norms.global_grad_norm", norm_of_norms),
    ("gradient_norms.global_grad_norm", norm_by_gathering_numbers),
    ("gradient_norms.clip_", clip()),
    ("gradient_norms.clip_", clip(unscale="in the norm")),
    ("gradient_norms.clip_", clip_scaled_to_a_scaled_limit),
    ("gradient_norms.clip_", clip_by_parameters),
    ("gradient_norms.token_loss", loss_weighted),
    ("gradient_norms.token_loss", loss_without_a_token_skips),
    ("gradient_norms.token_loss", loss_all_reduced_with_its_gradient),
]

SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX

WRONG = [
    ("gradient_norms.deep_stack", stack(), "Give it a way around"),
    ("gradient_norms.deep_stack", stack(max_grad_norm=1.0), "it cannot make them longer"),
    ("gradient_norms.deep_stack", stack(norm=True), "about 15 % a layer"),
    ("gradient_norms.deep_stack", stack(residual=True), "48 updates up"),
    ("gradient_norms.deep_stack", stack(init_scale=2**0.5), "the signal of the input is gone"),
    ("gradient_norms.deep_stack", stack(residual=True, norm=True, num_layers=8), "A shallower stack"),
    ("gradient_norms.deep_stack", stack(residual=True, norm=True, steps=200), "More steps"),
    ("gradient_norms.deep_stack", stack(residual=True, norm=True, batch_size=128), "Free are"),
    ("gradient_norms.deep_stack", stack(residual=True, norm=True, learning_rate=1e-6), "Is the learning rate"),
    ("gradient_norms.deep_stack", stack(init_scale=2.0), "explodes before the first step"),
    ("gradient_norms.deep_stack", stack(residual=True, norm=True, learning_rate=5.0), "too long for any stack"),
    ("gradient_norms.deep_stack", stack_of_a_spec, "a labs.ModelTrainingConfig"),
    ("gradient_norms.global_grad_norm", norm_from(squares, None), "this rank's own shards"),
    ("gradient_norms.global_grad_norm", norm_from(local_norm, SUM, same), "Those are norms of ranks"),
    ("gradient_norms.global_grad_norm", norm_from(tensor_norms, SUM, same), "Those are norms of tensors"),
    ("gradient_norms.global_grad_norm", norm_from(local_norm, MAX, same), "the largest norm of one rank"),
    ("gradient_norms.global_grad_norm", norm_from(squares, SUM, same), "Take the root"),
    ("gradient_norms.global_grad_norm", norm_from(squares, SUM, mean_root), "The squares were divided"),
    ("gradient_norms.global_grad_norm", norm_from(largest_element, MAX, same), "the largest element"),
    ("gradient_norms.global_grad_norm", norm_from(squares_in_bf16), "Make each shard fp32"),
    ("gradient_norms.global_grad_norm", norm_of_rank_0, "not broadcast"),
    ("gradient_norms.global_grad_norm", norm_by_gathering, "room for the whole gradient"),
    ("gradient_norms.global_grad_norm", norm_by_summing_a_padded_whole, "room for the whole gradient"),
    ("gradient_norms.global_grad_norm", norm_a_call_a_tensor, "each call pays latency"),
    ("gradient_norms.global_grad_norm", norm_with_python_zero, "takes 8 bytes"),
    ("gradient_norms.global_grad_norm", norm_of_a_stack, "may own no shard"),
    ("gradient_norms.global_grad_norm", norm_of_a_cat, "may own no shard"),
    ("gradient_norms.global_grad_norm", norm_that_leaves_early, "also a rank that owns none"),
    ("gradient_norms.global_grad_norm", norm_that_asks_the_first, "do not ask for the first one"),
    ("gradient_norms.global_grad_norm", norm_of_the_mean_square, "the root of the mean square"),
    ("gradient_norms.global_grad_norm", norm_in_place, "Measure without changing"),
    ("gradient_norms.global_grad_norm", norm_without_inf, "how all know to skip"),
    ("gradient_norms.global_grad_norm", norm_as_a_list, "one number"),
    ("gradient_norms.clip_", clip(norm=local_norm), "Each rank clips by the norm of its own shards"),
    ("gradient_norms.clip_", clip_each_tensor, "Each tensor is clipped by itself"),
    ("gradient_norms.clip_", clip_elements, "Each element is cut"),
    ("gradient_norms.clip_", clip(unscale="last"), "Clipped before unscaling"),
    ("gradient_norms.clip_", clip(unscale="never"), "The loss scale is still in the gradients"),
    ("gradient_norms.clip_", clip_copies, "The shards are as they were"),
    ("gradient_norms.clip_", clip_by_other_memory, "The shards are as they were"),
    ("gradient_norms.clip_", clip_without_nan, "who replaces it hides it"),
    ("gradient_norms.clip_", clip_rebound, "and never clipped"),
    ("gradient_norms.clip_", clip_by_torch_alone, "and never clipped"),
    ("gradient_norms.clip_", clip(factor=lambda limit, norm: limit / (norm or 1.0)), "the factor is at most 1"),
    ("gradient_norms.clip_", clip(norm=norm_from(tensor_norms, SUM, same)), "Those are norms of tensors"),
    ("gradient_norms.clip_", clip(factor=lambda limit, norm: max(1.0, limit / (norm or 1.0))), "take the smaller one"),
    ("gradient_norms.clip_", clip(factor=lambda limit, norm: 1 / (norm or 1.0)), "now has length 1"),
    ("gradient_norms.clip_", clip_to_nan, "became nan"),
    ("gradient_norms.clip_", clip_of_nothing_divides, "may be 0 everywhere"),
    ("gradient_norms.clip_", clip(gives=lambda norm, limit, scale: norm * scale), "has the loss scale in it"),
    ("gradient_norms.clip_", clip(gives=lambda norm, limit, scale: min(norm, limit)), "the norm after clipping"),
    ("gradient_norms.clip_", clip(gives=lambda norm, limit, scale: None), "people watch it"),
    ("gradient_norms.clip_", clip_gathering, "room for the whole gradient"),
    ("gradient_norms.token_loss", loss_mean_of_means, "the mean of the ranks' means"),
    ("gradient_norms.token_loss", loss_divides_zero, "a rank without real tokens divides 0 by 0"),
    ("gradient_norms.token_loss", loss_weighted_divides_zero, "a rank without real tokens divides 0 by 0"),
    ("gradient_norms.token_loss", loss_of_padding_too, "Padding is in the mean"),
    ("gradient_norms.token_loss", loss_sum, "Those are sums"),
    ("gradient_norms.token_loss", loss_divided_twice, "Multiply by the world size"),
    ("gradient_norms.token_loss", loss_counts_padding, "Padding is in the count"),
    ("gradient_norms.token_loss", loss_reduced_too, "Multiply by the world size"),
    ("gradient_norms.token_loss", loss_a_sample, "a loss a sample"),
    ("gradient_norms.token_loss", loss_by_samples, "a mean over samples"),
    ("gradient_norms.token_loss", loss_that_leaves_early, "make the same calls"),
    ("gradient_norms.token_loss", loss_detached, "keep the tensor"),
    ("gradient_norms.token_loss", loss_of_each_token, "one loss [] a rank"),
    ("gradient_norms.token_loss", loss_gathering, "room for the whole gradient"),
]
