"""Text for bytes, seconds, counts and norms. GiB is 2**30 bytes; GB is 10**9."""

KiB, MiB, GiB = 2**10, 2**20, 2**30
GB = 10**9


def format_bytes(num_bytes: float) -> str:
    """Write a number of bytes with a binary unit and three figures: 1536 -> '1.50 KiB'."""
    size = float(num_bytes)
    if abs(size) < KiB:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if abs(size) < 999.5 or unit == "TiB":
            break
    return f"{_three_figures(size)} {unit}"


def format_count(count: float) -> str:
    """Write a count with K, M, B or T and three figures: 223_232 -> '223 K'."""
    value = float(count)
    if abs(value) < 1000:
        return f"{value:.0f}"
    for unit in ("K", "M", "B", "T"):
        value /= 1000
        if abs(value) < 999.5 or unit == "T":
            break
    return f"{_three_figures(value)} {unit}"


def format_seconds(seconds: float) -> str:
    """Write a duration [seconds] in the unit that reads best: 0.0123 -> '12.3 ms'."""
    if abs(seconds) >= 120:
        return f"{seconds / 60:.1f} min"
    if abs(seconds) >= 1:
        return f"{_three_figures(seconds)} s"
    if abs(seconds) >= 1e-3:
        return f"{_three_figures(seconds * 1e3)} ms"
    return f"{_three_figures(seconds * 1e6)} us"


def format_figures(value: float, figures: int = 3) -> str:
    """Write a number with so many figures, with an exponent when it is tiny or a million and more: 1920 -> '1,920'."""
    text = f"{value:.{figures}g}"
    return f"{float(text):,.0f}" if "e+" in text and abs(float(text)) < 1e6 else text


def _three_figures(value: float) -> str:
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"
