//! Where Debian's backports are: the text of a source for apt, from what this machine says of itself.

/// What apt checks Debian's lists with.
pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Debian's mirror for those that have chosen none.
const MIRROR: &str = "http://deb.debian.org/debian/";

/// The release's name in /etc/os-release, if that is Debian's.
pub fn codename(os_release: &str) -> Option<&str> {
    let value = |key: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(line.trim_matches('"'))
    };
    let known = |name: &&str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase());
    value("VERSION_CODENAME").filter(|_| value("ID") == Some("debian")).filter(known)
}

/// The mirror among apt's index targets, lines `RELEASE URI`, that has the release itself.
pub fn mirror(targets: &str, codename: &str) -> String {
    let uris = targets.lines().filter_map(|line| line.split_once(' '));
    let mut uris = uris.filter(|(release, uri)| *release == codename && uri.contains("debian"));
    uris.next().map_or(MIRROR, |(_, uri)| uri).to_owned()
}

/// The contents of a list of sources.
pub fn sources(mirror: &str, codename: &str) -> String {
    format!("deb [signed-by={KEYRING}] {mirror} {codename}-backports main\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_debian_has_them() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n"), Some("bookworm"));
        assert_eq!(codename("VERSION_CODENAME=\"trixie\"\nID=\"debian\""), Some("trixie"));
        assert_eq!(codename("ID=ubuntu\nVERSION_CODENAME=noble\nID_LIKE=debian\n"), None);
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=a b\n"), None);
        assert_eq!(codename(""), None);
    }

    #[test]
    fn the_mirror_is_this_machines() {
        let targets = "nodistro https://deb.nodesource.com/node_20.x/\nbookworm-security http://s/debian-security/\n\
                       bookworm http://mirror.example/debian/\nbookworm http://other/debian/\n";
        assert_eq!(mirror(targets, "bookworm"), "http://mirror.example/debian/");
        assert_eq!(mirror("", "trixie"), MIRROR);
        let list = sources(MIRROR, "trixie");
        assert!(
            list.starts_with("deb [signed-by=/usr/") && list.ends_with("debian/ trixie-backports main\n")
        );
    }
}
