"""How the report looks: one style sheet, light and dark, and the legend of its marks."""

STYLE = """
:root{--paper:#fff;--ink:#1b1f24;--soft:#667;--rule:#dde1e6;--a:#0b62c4;--b:#c2410c;--c:#15803d;
--hit:#15803d}
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e6e8eb;--soft:#9aa3ad;
--rule:#333a42;--a:#6cb2ff;--b:#ff9d6b;--c:#6bd48f;--hit:#6bd48f}}
body{background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif;
max-width:860px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;line-height:1.25}h2{font-size:1.15rem;margin:2.2rem 0 .4rem}
p.lead{font-size:1.1rem}.soft,figcaption{color:var(--soft);font-size:.9rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.93rem}
th,td{padding:.35rem .6rem;border-bottom:1px solid var(--rule);text-align:right}
th:first-child,td:first-child{text-align:left}.scroll{overflow-x:auto}
svg{width:100%;height:auto;font-size:13px}svg text{fill:var(--ink)}
svg text.f0{fill:var(--a)}svg text.f1{fill:var(--c)}
svg line,svg polyline{fill:none;stroke:var(--ink);stroke-width:2}
svg .grid{stroke:var(--rule);stroke-width:1}svg .link{stroke:var(--soft);stroke-width:2}
svg .dash{stroke-dasharray:7 5}svg .dot{stroke-dasharray:2 4}
svg .c0{stroke:var(--a)}svg .c1{stroke:var(--c)}svg .f0{fill:var(--a)}svg .f1{fill:var(--c)}
svg .before{fill:var(--soft)}svg .unlearned,svg .removed{fill:var(--a)}
svg .retrain{fill:none;stroke:var(--b);stroke-width:3}
svg .kept{fill:none;stroke:var(--soft);stroke-width:2}
.legend{display:flex;gap:1.4rem;flex-wrap:wrap;font-size:.9rem}.legend svg{width:1rem}
.legend span{display:flex;gap:.4rem;align-items:center}
.shots{display:grid;grid-template-columns:6.5rem repeat(5,minmax(0,1fr));gap:.35rem;
align-items:center;margin:.3rem 0}
.shots img{width:100%;max-width:96px;display:block;border:3px solid transparent;
image-rendering:auto}
.shots img.hit{border-color:var(--hit)}.query{margin:1.2rem 0 .2rem;display:flex;gap:.7rem;
align-items:center}.query img{width:64px}
code{font-size:.85em;overflow-wrap:anywhere}
details{margin-top:1rem}summary{cursor:pointer}
"""
LEGEND = (
    '<div class="legend">'
    '<span><svg viewBox="0 0 16 16"><circle class="before" cx="8" cy="8" r="6"/></svg>before</span>'
    '<span><svg viewBox="0 0 16 16"><polygon class="unlearned" points="8,0 16,8 8,16 0,8"/></svg>'
    "unlearned</span>"
    '<span><svg viewBox="0 0 16 16"><rect class="retrain" x="2" y="2" width="12" height="12"/>'
    "</svg>retrained without it</span></div>"
)
