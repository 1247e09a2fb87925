// Package chromium drives a headless Chromium in tests of pages: by the
// DevTools protocol over a pair of pipes, so that no port is opened. One
// Chromium serves all tests of a test binary, and a page one test after the other.
//
// What a page must not do is noted while it is open: errors, exceptions, and
// requests for anything but the page's own. See [Page.NoErrors].
package chromium
