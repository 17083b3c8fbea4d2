package e2e

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// Flags of TestFaults; `make faults` injects each fault ten times.
var (
	each = flag.Int("faults.each", 1, "how often each fault is injected")
	only = flag.String("faults.only", "", "regular expression of the faults' names")
)

// progressEnv passes a pipe to a test in its own namespaces.
const progressEnv = "TEST_IPOIBD_E2E_PROGRESS"

// Every fault is injected into one of two hosts under traffic; a table shows the
// outcomes, and which goals were met.
func TestFaults(t *testing.T) {
	if enterLong(t) {
		return
	}
	times, kinds, say := timesEach(t), chosen(t), progress(t)
	rows := make([]row, len(kinds))
	for i, f := range kinds {
		rows[i] = row{fault: f}
		t.Run(f.name, func(t *testing.T) {
			say("[%d/%d] %s", i+1, len(kinds), f.name)
			rows[i].measure(t, times, say)
		})
	}
	say("%s", table(rows))
}

// timesEach is how often to inject each fault.
func timesEach(t *testing.T) int {
	t.Helper()
	if *each < 1 {
		t.Fatalf("-faults.each=%d: want 1 or more", *each)
	}
	return *each
}

// chosen returns the faults to inject.
func chosen(t *testing.T) (kinds []fault) {
	t.Helper()
	pattern, err := regexp.Compile(*only)
	if err != nil {
		t.Fatalf("-faults.only: %v", err)
	}
	for _, f := range faultKinds {
		if pattern.MatchString(f.name) {
			kinds = append(kinds, f)
		}
	}
	return kinds
}

// enterLong is [nstest.EnterAlone] for a long test that measures and reports its progress: lines
// from progress are printed at once.
func enterLong(t *testing.T) bool {
	t.Helper()
	if os.Getenv(progressEnv) == "" {
		t.Setenv(progressEnv, repeat(t))
	}
	return nstest.EnterAlone(t)
}

// repeat creates a named pipe and prints everything written to it until the
// test ends.
func repeat(t *testing.T) (name string) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "progress")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatalf("make a pipe: %v", err)
	}
	pipe, err := os.OpenFile(name, os.O_RDWR, 0) // both ends, so that reading never returns EOF
	if err != nil {
		t.Fatal(err)
	}
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		for lines := bufio.NewScanner(pipe); lines.Scan() && lines.Text() != endOfProgress; {
			fmt.Println(lines.Text())
		}
	}()
	t.Cleanup(func() {
		fmt.Fprintln(pipe, endOfProgress)
		<-printed
		pipe.Close()
	})
	return name
}

// endOfProgress never occurs in a test's progress.
const endOfProgress = "\x04"

// progress returns a function that prints lines at once.
func progress(t *testing.T) func(format string, args ...any) {
	t.Helper()
	pipe, err := os.OpenFile(os.Getenv(progressEnv), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pipe.Close() })
	return func(format string, args ...any) { fmt.Fprintf(pipe, format+"\n", args...) }
}
