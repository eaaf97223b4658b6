//! Commands in documents: the lines after a `$` in console blocks.
//!
//! In: the text of a page. Out: its commands as a shell would run them, word by word. Several packages
//! read this file, each for the commands of its own program, so it uses nothing but the standard
//! library.

/// The commands of a page, in order, each as its words. A pipe or a `;` begins another command; what
/// is written to a file and comments are left out.
pub fn commands(page: &str) -> Vec<Vec<String>> {
    lines(page).iter().flat_map(|line| split(line)).collect()
}

/// The lines after a `$`, joined where one ends in a backslash.
fn lines(page: &str) -> Vec<String> {
    let (mut lines, mut inside) = (Vec::<String>::new(), false);
    for line in page.lines().map(str::trim_start) {
        if let Some(kind) = line.strip_prefix("```") {
            inside = kind == "console";
        } else if !inside {
        } else if let Some(command) = line.strip_prefix("$ ") {
            lines.push(command.to_owned());
        } else if let Some(open) = lines.last_mut().filter(|line| line.ends_with('\\')) {
            open.pop();
            open.push_str(line);
        }
    }
    lines
}

fn split(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![vec![]];
    let (mut word, mut quote, mut begun) = (String::new(), None, false);
    for letter in line.chars().chain([' ']) {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '\'' | '"') => (quote, begun) = (Some(letter), true),
            (None, '#') if word.is_empty() && !begun => break,
            (None, ' ' | '|' | ';') => {
                let current: &mut Vec<String> = commands.last_mut().expect("it begins with one");
                if begun || !word.is_empty() {
                    current.push(std::mem::take(&mut word));
                    begun = false;
                }
                if letter != ' ' {
                    commands.push(vec![]);
                }
            }
            _ => word.push(letter),
        }
    }
    let written = |words: Vec<String>| -> Vec<String> {
        words.into_iter().take_while(|word| word != ">").collect()
    };
    let commands = commands.into_iter().map(written);
    commands.filter(|words| !words.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_as_a_shell_does() {
        let page = "```console\n$ a 'b | c' \"$(d)\" > e   # f\nshown\n$ g \\\n    h; i | j\n```\n$ k\n\
                    ```text\n$ l\n```\n   ```console\n   $ m '' # n\n   ```\n";
        let words: Vec<_> = commands(page).iter().map(|words| words.join("+")).collect();
        assert_eq!(words, ["a+b | c+$(d)", "g+h", "i", "j", "m+"]);
    }
}
