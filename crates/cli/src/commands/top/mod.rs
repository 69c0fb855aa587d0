//! `kvfs top`.
//!
//! Thread safety: one thread draws and takes keys, one asks the daemon. Invariant: however it ends, also by a
//! panic or a signal that can be caught, the terminal is as it was before.

mod figures;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use kvfs_service::ErrorKind;
use kvfs_store::clock::{Clock, SystemClock};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use ratatui::{DefaultTerminal, Frame};
use signal_hook::consts::{SIGHUP, SIGTERM};

use super::txn::connect;
use crate::args::TopArgs;
use crate::control::{self, Client, Request, Response};
use crate::error::{CliError, Code, Result};
use crate::{output, progress};
use figures::{HEADING, Look, Screen, WIDTHS, title};

/// Between two looks at signals.
const SIGNALS_PERIOD: Duration = Duration::from_millis(200);
/// Between two looks whether the daemon has answered.
const ANSWER_PERIOD: Duration = Duration::from_millis(5);

pub(crate) fn run(args: &TopArgs) -> Result<ExitCode> {
    // A bar would draw into the screen.
    progress::allow(true, false);
    let (mut client, mounted) = connect(args.target.as_deref().or(args.store.as_deref()))?;
    let store = if mounted.dir.as_os_str().is_empty() { &mounted.store } else { &mounted.dir };
    let store = store.display().to_string().escape_debug().to_string();
    let is_over = if args.once || !io::stdout().is_terminal() {
        once(&mut client, &store, args.delay)?
    } else {
        let mut terminal = ratatui::try_init().map_err(|error| failed(&error))?;
        let done = watch(&mut terminal, client, &store, args.delay);
        let restored = ratatui::try_restore().map_err(|error| failed(&error));
        let is_over = done?;
        restored?;
        is_over
    };
    if is_over {
        eprintln!("kvfs: the daemon of the store has ended");
    }
    Ok(ExitCode::SUCCESS)
}

fn failed(error: &io::Error) -> CliError {
    CliError::io("use", Path::new("the terminal"), error)
}

/// `None`: the daemon has ended.
fn look(client: &mut Client) -> Result<Option<Look>> {
    let mut ask = |request: &Request| match client.call(request) {
        Err(error) if error.kind() == ErrorKind::NotMounted => Ok(Response::Closing),
        answer => answer,
    };
    match (ask(&Request::Stats)?, ask(&Request::Operations)?) {
        (Response::Stats(stats), Response::Operations(operations)) => Ok(Some(Look { stats, operations })),
        (Response::Closing, _) | (_, Response::Closing) => Ok(None),
        _ => Err(control::confused()),
    }
}

/// Prints one screen. True: the daemon has ended.
fn once(client: &mut Client, store: &str, delay: Duration) -> Result<bool> {
    let Some(before) = look(client)? else { return Ok(true) };
    let clock = SystemClock::new();
    while let Some(left) = delay.checked_sub(clock.monotonic()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
    let Some(now) = look(client)? else { return Ok(true) };
    output::print(&Screen::between(&before, &now).as_text(&title(store, &now)))?;
    Ok(false)
}

/// Looks at the store on a thread of its own: a daemon that does not answer must not keep keys and signals
/// waiting.
struct Looks {
    wanted: Sender<()>,
    found: Receiver<Result<Option<Look>>>,
}

impl Looks {
    /// The thread ends with the receiver, or with the process while the daemon owes an answer.
    fn of(mut client: Client) -> Result<Self> {
        let (wanted, asked) = channel();
        let (tell, found) = channel();
        let body = move || while asked.recv().is_ok() && tell.send(look(&mut client)).is_ok() {};
        std::thread::Builder::new()
            .name("looks".into())
            .spawn(body)
            .map_err(|error| CliError::new(Code::Failed, format!("cannot start a thread: {error}")))?;
        Ok(Self { wanted, found })
    }

    fn ask(&self) {
        // A thread that has ended owes nothing: `found` tells.
        let _ = self.wanted.send(());
    }
}

/// Whether a key says that the screen is to go.
fn ends(key: &KeyEvent) -> bool {
    let is_ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
    let is_meant = match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => is_ctrl,
        _ => false,
    };
    is_meant && key.kind != KeyEventKind::Release
}

/// Shows screens until a key or a signal ends it. True: the daemon has ended.
fn watch(terminal: &mut DefaultTerminal, client: Client, store: &str, delay: Duration) -> Result<bool> {
    let is_stopping = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&is_stopping))
            .map_err(|error| CliError::new(Code::Failed, format!("cannot catch signals: {error}")))?;
    }
    let (clock, looks) = (SystemClock::new(), Looks::of(client)?);
    let mut shown: Option<(Screen, String, Look)> = None;
    // `None`: a look is under way.
    let mut due = Some(Duration::ZERO);
    loop {
        if due.is_some_and(|due| clock.monotonic() >= due) {
            looks.ask();
            due = None;
        }
        let left = due.map_or(ANSWER_PERIOD, |due| due.saturating_sub(clock.monotonic()));
        let is_input = event::poll(left.min(SIGNALS_PERIOD)).map_err(|error| failed(&error))?;
        if is_stopping.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mut is_changed = false;
        if is_input {
            match event::read().map_err(|error| failed(&error))? {
                Event::Key(key) if ends(&key) => return Ok(false),
                Event::Resize(..) => is_changed = true,
                _ => {}
            }
        }
        match looks.found.try_recv() {
            Ok(found) => {
                let Some(now) = found? else { return Ok(true) };
                let before = shown.as_ref().map_or(&now, |(.., before)| before);
                shown = Some((Screen::between(before, &now), title(store, &now), now));
                // Where the daemon was slow to answer, nothing is made up for.
                (due, is_changed) = (Some(clock.monotonic() + delay), true);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(control::confused()),
        }
        if let Some((screen, title, _)) = shown.as_ref().filter(|_| is_changed) {
            terminal.draw(|frame| draw(frame, title, screen)).map_err(|error| failed(&error))?;
        }
    }
}

fn draw(frame: &mut Frame<'_>, title: &str, screen: &Screen) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = vec![Line::styled(title.to_owned(), bold)];
    lines.extend(screen.lines.iter().map(|(name, words)| {
        Line::from(vec![Span::styled(format!("{name:13} "), bold), Span::raw(words.as_str())])
    }));
    let head_len = lines.len() as u16 + 1;
    let [head, table, foot] =
        Layout::vertical([Constraint::Length(head_len), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(lines), head);
    let cells = |row: &[String; 7]| {
        let cells = row.iter().enumerate().map(|(place, cell)| {
            let line = Line::raw(cell.clone());
            Cell::from(if place == 0 { line } else { line.right_aligned() })
        });
        Row::new(cells.collect::<Vec<_>>())
    };
    let heading = cells(&HEADING.map(str::to_owned)).style(Style::new().add_modifier(Modifier::REVERSED));
    let rows = screen.rows.iter().map(cells);
    frame.render_widget(Table::new(rows, WIDTHS.map(Constraint::Length)).header(heading), table);
    let hint = if screen.rows.is_empty() { "no operations; q: end" } else { "q: end" };
    frame.render_widget(Paragraph::new(hint), foot);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    #[test]
    fn screen_fits_any_terminal_and_is_cut_where_it_does_not() {
        let screen = Screen {
            lines: vec![("space", "1 MiB of 4 MiB".to_owned())],
            rows: vec![["read", "7", "-", "4 MiB", "1 ms", "2 ms", "3 ms"].map(str::to_owned); 40],
        };
        for (width, height) in [(80, 24), (20, 5), (1, 1), (200, 60)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("begins");
            terminal.draw(|frame| draw(frame, "kvfs /store", &screen)).expect("draws");
            let buffer = terminal.backend().buffer();
            let text: Vec<String> = (0..height)
                .map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>())
                .collect();
            if (width, height) == (80, 24) {
                assert_eq!(text[0].trim_end(), "kvfs /store");
                assert_eq!(text[1].trim_end(), "space         1 MiB of 4 MiB");
                assert!(text[3].starts_with("KIND") && text[4].starts_with("read"), "{text:#?}");
                assert_eq!(text[4].split_whitespace().nth(1), Some("7"));
                assert_eq!(text[23].trim_end(), "q: end");
            }
        }
    }
}
