// Requirements writes qprecovery/README.md: each requirement of recovery, the
// code that names it and the tests that show it. It runs in the root of the
// module and prints the page; with -w it writes the file instead.
//
// # Tests
//
// A test shows the requirements that stand in its name: TestR07Peers shows R7,
// TestR11R15Explore two of them. So does a subtest whose name is written in a
// test file as a string that begins with R07 and a slash; what is appended to it
// or formatted into it at run time is shown as an ellipsis. A transcript shows
// the requirement in its file name, testdata/R07-peers.txt, where a test file
// beside testdata has a string whose pattern matches it.
//
// # Code
//
// A file of the packages that recovery is made of has to do with a requirement
// where a comment names it as a word of its own: R7 or R07, and all of R18-R20.
//
// # Limits
//
// Names are read, nothing is run: that the tests pass is go test's to say, and
// whether a test shows what its name claims is for people to judge. A requirement
// that does not exist is an error wherever it is named.
package main
