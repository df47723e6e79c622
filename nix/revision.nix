# What the tree was when it was built: a commit, and whether it held anything that is not committed. Embedded in
# moet-w2 (revision.json of its dist-info) and printed by the apps.
{ self }:
let
  committed = self ? rev;
in
{
  # A flake of uncommitted changes has `dirtyRev` from Nix 2.17 on, and one that is no repository has neither.
  id = self.rev or self.dirtyRev or "unknown";
  dirty = !committed;
  text = if committed then self.rev else "${self.dirtyRev or "unknown"} (uncommitted changes)";
}
