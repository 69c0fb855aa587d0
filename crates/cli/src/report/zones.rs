//! The picture of a store's zones, and figures that say how fragmented it is.

use std::fmt::Write;

use kvfs_service::lines::zone_codes::{FREE, JOURNAL, MANIFEST, SUPERBLOCKS, WRITING};
use serde_json::json;

use crate::control::ZoneLines;
use crate::units::{human_bytes, human_value};

/// Characters in a line.
const WIDTH: usize = 64;
/// Lines, as a rule: a store of more zones shows several by one character.
const HEIGHT: usize = 32;

const LEGEND: &str = "S superblocks  J journal  M manifest  W being written  . free  r free, reserved\n\
                      1-9 data, so many tenths of it live  # full of live data  0 hardly any live";

/// What a zone is, in one byte: how full of live data (percent), or one of the numbers for other uses.
pub(crate) fn code(zone: &kvfs_kvdb::ZoneInfo, zone_bytes: u64) -> u8 {
    use kvfs_kvdb::ZoneKind;
    match zone.kind {
        ZoneKind::Superblocks => SUPERBLOCKS,
        ZoneKind::Journal => JOURNAL,
        ZoneKind::Manifest => MANIFEST,
        ZoneKind::Writing => WRITING,
        ZoneKind::Free => FREE,
        ZoneKind::Data => (zone.bytes_live * 100 / zone_bytes.max(1)).min(100) as u8,
    }
}

/// What most of the zones are; of data the mean.
fn character(zones: &[u8], is_reserved: bool) -> char {
    let count = |code: u8| zones.iter().map(|&zone| usize::from(zone == code)).sum::<usize>();
    let data: Vec<u32> = zones.iter().filter(|&&zone| zone <= 100).map(|&fill| fill.into()).collect();
    let special = [SUPERBLOCKS, JOURNAL, MANIFEST, WRITING, FREE].into_iter().max_by_key(|&code| count(code));
    match special {
        Some(code) if count(code) > data.len() => match code {
            SUPERBLOCKS => 'S',
            JOURNAL => 'J',
            MANIFEST => 'M',
            WRITING => 'W',
            _ if is_reserved => 'r',
            _ => '.',
        },
        _ => match data.iter().sum::<u32>() / data.len().max(1) as u32 {
            95.. => '#',
            fill => char::from_digit(fill / 10, 10).unwrap_or('?'),
        },
    }
}

/// The picture, the legend, the figures.
pub(crate) fn as_text(map: &ZoneLines) -> String {
    let group = map.codes.len().div_ceil(WIDTH * HEIGHT).max(1);
    // The last free zones stand for the reserve; any may serve.
    let mut left = map.reserved;
    let mut picture: Vec<char> = Vec::with_capacity(map.codes.len() / group + 1);
    for zones in map.codes.chunks(group).rev() {
        let character = character(zones, left > 0);
        if character == 'r' {
            left = left.saturating_sub(zones.len() as u64);
        }
        picture.push(character);
    }
    picture.reverse();
    let mut text = String::new();
    for (line, characters) in picture.chunks(WIDTH).enumerate() {
        // Writing to a string never fails.
        let characters: String = characters.iter().collect();
        let _ = writeln!(text, "{:>8}  {characters}", line * WIDTH * group);
    }
    let each = match group {
        1 => format!("one character: a zone of {}", human_bytes(map.zone_bytes)),
        zones => format!("one character: {zones} zones of {}", human_bytes(map.zone_bytes)),
    };
    let _ = writeln!(text, "\n{each}\n{LEGEND}\n");
    let width = map.figures.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in &map.figures {
        let _ = writeln!(text, "{name:width$}  {}", human_value(name, *value));
    }
    text
}

/// One object: the figures, and of each zone its use and how full of live data it is.
pub(crate) fn as_json(map: &ZoneLines) -> String {
    let zone = |&code: &u8| match code {
        SUPERBLOCKS => json!({ "use": "superblocks" }),
        JOURNAL => json!({ "use": "journal" }),
        MANIFEST => json!({ "use": "manifest" }),
        WRITING => json!({ "use": "writing" }),
        FREE => json!({ "use": "free" }),
        percent => json!({ "use": "data", "live_percent": percent }),
    };
    let zones: Vec<_> = map.codes.iter().map(zone).collect();
    let mut object: serde_json::Map<_, _> =
        map.figures.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
    object.insert("zone_bytes".into(), map.zone_bytes.into());
    object.insert("zones".into(), zones.into());
    format!("{}\n", serde_json::Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_zone_is_a_character_and_the_reserve_is_at_the_end() {
        let codes = vec![SUPERBLOCKS, JOURNAL, MANIFEST, WRITING, 0, 37, 99, FREE, 100, FREE, FREE];
        let figures = vec![("zones.free".to_owned(), 3)];
        let map = ZoneLines { zone_bytes: 8 << 20, codes, reserved: 2, figures };
        let text = as_text(&map);
        assert_eq!(text.lines().next(), Some("       0  SJMW03#.#rr"));
        assert!(text.contains("one character: a zone of 8.0 MiB"), "{text}");
        assert!(as_json(&map).contains("{\"live_percent\":37,\"use\":\"data\"}"));
    }

    #[test]
    fn many_zones_share_a_character() {
        let map = ZoneLines { zone_bytes: 1 << 20, codes: vec![50; 5000], reserved: 0, figures: Vec::new() };
        let text = as_text(&map);
        assert!(text.contains("one character: 3 zones"), "{text}");
        let picture = text.lines().take_while(|line| !line.is_empty());
        let drawn = picture.filter_map(|line| line.get(10..)).flat_map(str::chars);
        assert_eq!(drawn.filter(|&c| c == '5').count(), 5000_usize.div_ceil(3), "{text}");
    }
}
