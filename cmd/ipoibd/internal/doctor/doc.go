// Package doctor examines this machine and its daemon, for package diagnose, which judges the facts.
//
// [Gather] collects the facts from the kernel, from files and from the daemon's control socket, within a
// bounded time, and changes nothing. A daemon has already observed much of this: its notices and its
// reasons are taken as they are (package report), and so are the errors of the packages that would make a
// start fail (link, backend). [NewReport] returns the findings as JSON.
package doctor
