//! Growth as a picture: two panels with logarithmic axes, one line per program.

use std::fmt::Write as _;

use super::report::{Record, programs};
use super::spread::middle;

const WIDTH: f64 = 430.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 90.0;
/// Distinguishable, also in grey: ferrule first.
const COLOURS: [&str; 4] = ["#d1495b", "#7a93ac", "#1f3b57", "#888888"];
const PANELS: [(&str, &str); 2] = [
    ("exec → every Service reachable", "reachable"),
    ("one endpoint: API write → kernel, p50", "change p50"),
];

type Point = (f64, f64);

/// An SVG of everything that was measured at more than one size.
pub fn draw(records: &[Record]) -> String {
    let mut svg = String::new();
    // Writing to a string cannot fail.
    let _written = write(&mut svg, records);
    svg
}

fn write(svg: &mut String, records: &[Record]) -> std::fmt::Result {
    let programs = programs(records);
    let (width, height) = (2.0 * (LEFT + WIDTH) + 30.0, TOP + HEIGHT + BOTTOM);
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>"
    )?;
    for (number, (title, name)) in (0_u8..).zip(PANELS) {
        let lines: Vec<_> = programs
            .iter()
            .map(|program| points(records, program, name))
            .collect();
        panel(svg, f64::from(number) * (LEFT + WIDTH), title, &lines)?;
    }
    for (number, program) in (0_u8..).zip(&programs) {
        let x = LEFT + f64::from(number) * 230.0;
        let y = TOP + HEIGHT + 65.0;
        let colour = COLOURS[usize::from(number) % COLOURS.len()];
        writeln!(
            svg,
            "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" \
             stroke-width=\"3\"/><text x=\"{}\" y=\"{}\">{program}</text>",
            x + 30.0,
            x + 38.0,
            y + 4.0
        )?;
    }
    writeln!(svg, "</svg>")
}

/// The middle of every size.
fn points(records: &[Record], program: &str, name: &str) -> Vec<Point> {
    let mut sizes: Vec<_> = records.iter().map(|record| record.services).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let at = |size: u32| {
        let here = records
            .iter()
            .filter(|record| record.services == size && record.program == program);
        let values = here.filter_map(|record| record.figures.get(name).copied());
        let (middle, ..) = middle(values.collect())?;
        Some((f64::from(size), middle))
    };
    sizes.into_iter().filter_map(at).collect()
}

/// Whole powers of ten around some values.
fn decades(values: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    let least = values.clone().min_by(f64::total_cmp)?.log10().floor();
    let most = values.max_by(f64::total_cmp)?.log10().ceil();
    Some((least, most.max(least + 1.0)))
}

fn panel(svg: &mut String, left: f64, title: &str, lines: &[Vec<Point>]) -> std::fmt::Result {
    let all = lines.iter().flatten();
    let (Some(xs), Some(ys)) = (
        decades(all.clone().map(|point| point.0)),
        decades(all.map(|point| point.1)),
    ) else {
        return Ok(());
    };
    let x = |value: f64| left + LEFT + (value.log10() - xs.0) / (xs.1 - xs.0) * WIDTH;
    let y = |value: f64| TOP + HEIGHT - (value.log10() - ys.0) / (ys.1 - ys.0) * HEIGHT;
    let (from, to) = (x(10_f64.powf(xs.0)), x(10_f64.powf(xs.1)));
    writeln!(
        svg,
        "<text x=\"{from:.1}\" y=\"{}\" font-weight=\"bold\">{title}</text>",
        TOP - 18.0
    )?;
    for value in powers(ys) {
        let at = y(value);
        writeln!(
            svg,
            "<line x1=\"{from:.1}\" y1=\"{at:.1}\" x2=\"{to:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            from - 8.0,
            at + 4.0,
            time(value)
        )?;
    }
    for value in powers(xs) {
        let at = x(value);
        let (top, bottom) = (TOP, TOP + HEIGHT);
        writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{value}</text>",
            bottom + 20.0
        )?;
    }
    writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">Services</text>",
        f64::midpoint(from, to),
        TOP + HEIGHT + 40.0
    )?;
    for (colour, line) in COLOURS.iter().cycle().zip(lines) {
        let points: Vec<_> = line
            .iter()
            .map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1)))
            .collect();
        writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"3\"/>",
            points.join(" ")
        )?;
    }
    Ok(())
}

fn powers((from, to): (f64, f64)) -> impl Iterator<Item = f64> {
    std::iter::successors(Some(from), |power| Some(power + 1.0))
        .take_while(move |power| *power <= to + 0.1)
        .map(|power| 10_f64.powf(power))
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 0.999e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 0.999 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_line_has_a_point_per_size() {
        let record = |services, reachable| Record {
            program: "ferrule".to_owned(),
            mode: "nftables".to_owned(),
            services,
            endpoints: 2,
            figures: BTreeMap::from([("reachable".to_owned(), reachable)]),
        };
        let svg = draw(&[record(100, 0.1), record(1000, 1.0)]);
        // From one corner of the panel to the other.
        assert!(svg.contains("points=\"70.0,350.0 500.0,50.0\""), "{svg}");
        assert!(svg.contains(">100 ms<") && svg.contains(">1000<"), "{svg}");
    }

    #[test]
    fn nothing_measured_is_an_empty_picture() {
        assert!(draw(&[]).ends_with("</svg>\n"));
    }
}
