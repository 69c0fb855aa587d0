use super::image::{CELL, LINE, MARGIN};
use super::*;

fn lines() -> HeatLines {
    use HeatCellLine::{Counted, Free, Other};
    let fast = DeviceHeatLine {
        id: 0,
        path: Some(b"/f\x1b".to_vec()),
        tier: "fast".to_owned(),
        bytes_total: 2 << 20,
        bytes_counted: 1 << 20,
        bytes_hot: 256 << 10,
        cell_bytes: 256 << 10,
        cells: vec![Other, Counted(0), Counted(1), Counted(2), Counted(7), Counted(255), Free],
    };
    let slow = DeviceHeatLine {
        id: 1,
        tier: "slow".to_owned(),
        cell_bytes: 256 << 10,
        cells: vec![Free; 2],
        ..DeviceHeatLine::default()
    };
    HeatLines { was_counted: true, hot_from: 3, devices: vec![fast, slow] }
}

const LABEL: &str = "device 0, fast, /f\\u{1b}: 2.0 MiB, 1.0 MiB of content, 25 % of it hot; 256 KiB a cell";

#[test]
fn heat_without_colours_is_framed_characters_with_labels_and_a_scale() {
    let expected = format!(
        "{LABEL}\n|/.:-|\n|=@ |\n\n\
         device 1, slow, missing: 0 B, 0 B of content, 0 % of it hot; 256 KiB a cell\n|  |\n\n\
         ' ' nothing  / rows, metadata, dead  . not read lately\n\
         : 1  - 2  = 4  + 8  * 16  # 32  % 64  @ 128 times or more\n\
         hot: read 3 times or more lately; counts are halved from time to time\n"
    );
    assert_eq!(as_text(&lines(), 4, false), expected);
}

#[test]
fn heat_in_colours_has_two_rows_a_line_and_ends_each_without_colour() {
    let text = as_text(&lines(), 4, true);
    let row = text.lines().nth(1).expect("is there");
    let both = "\x1b[38;5;244;48;5;37m▀\x1b[38;5;18;48;5;196m▀\x1b[38;5;20;48;5;235m▀";
    assert_eq!(row, format!("{both}\x1b[0m\x1b[38;5;26m▀\x1b[0m"));
    // The second device is all alike.
    assert_eq!(text.lines().nth(4), Some("\x1b[0m\x1b[38;5;235m▀▀\x1b[0m"));
    assert!(text.lines().all(|line| !line.contains('\x1b') || line.rfind("\x1b[0m") == line.rfind('\x1b')));
}

#[test]
fn heat_as_png_has_each_cell_in_the_colour_of_its_count() {
    let mut bytes = Vec::new();
    let (width, height) = write_png(&mut bytes, &lines(), 4).expect("is written");
    let mut decoder = png::Decoder::new(std::io::Cursor::new(bytes));
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().expect("is a picture");
    let mut pixels = vec![0; reader.output_buffer_size().expect("has a size")];
    let info = reader.next_frame(&mut pixels).expect("is whole");
    assert_eq!((info.width as usize, info.height as usize), (width, height));
    let colour = |x: usize, y: usize| pixels[(y * width + x) * 3..][..3].to_vec();
    for (at, &cell) in lines().devices[0].cells.iter().enumerate() {
        let (x, y) = (MARGIN + at % 4 * CELL + 2, MARGIN + LINE + at / 4 * CELL + 2);
        assert_eq!(colour(x, y), LOOKS[look_of(cell)].rgb, "cell {at}");
    }
    assert_eq!(colour(MARGIN + 7 * CELL, MARGIN + LINE + 2), [255; 3], "no cell is there");
    // The D of its label.
    assert_eq!([colour(MARGIN, MARGIN), colour(MARGIN + 4, MARGIN)], [[0; 3], [255; 3]]);
}

#[test]
fn heat_in_json_tells_what_is_empty_from_what_is_cold() {
    let value: Value = serde_json::from_str(&as_json(&lines())).expect("is JSON");
    assert_eq!(value["devices"][0]["cells"], json!([-1, 0, 1, 2, 7, 255, null]));
    assert_eq!(value["devices"][0]["hot_bytes"], 256 << 10);
}
