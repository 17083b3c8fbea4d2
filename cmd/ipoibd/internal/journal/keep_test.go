package journal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// keeping keeps a journal in a file, until the caller calls the function.
func keeping(t *testing.T, j *Journal, path string) (end func()) {
	t.Helper()
	f, err := j.create(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- j.keep(ctx, f) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func loaded(t *testing.T, path string) *Journal {
	t.Helper()
	j := New()
	if err := j.Load(path); err != nil {
		t.Fatal(err)
	}
	return j
}

// The next process has the entries of the former ones, and continues their numbers, however many
// there were and wherever the file ends.
func TestEventsOutliveTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	var want []Entry
	for _, n := range []int{0, 1, 3, maxLines + 7, 2} {
		j := loaded(t, path)
		end := keeping(t, j, path)
		for i := range n {
			j.Add(Entry{Scope: "ib0", Kind: KindNote, Text: fmt.Sprint(i), Time: at(i)})
			want = j.Since(0)
		}
		end()
		if text, _ := os.ReadFile(path); strings.Count(string(text), "\n") > maxLines {
			t.Errorf("%d lines, more than %d", strings.Count(string(text), "\n"), maxLines)
		}
		same := func(a, b Entry) bool { return a.Seq == b.Seq && a.Text == b.Text && a.Time.Equal(b.Time) }
		if got := loaded(t, path).Since(0); !slices.EqualFunc(got, want, same) {
			t.Fatalf("after %d entries: %d entries, want %d:\n%+v", n, len(got), len(want), got)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text[:len(text)-5], 0o600); err != nil {
		t.Fatal(err)
	}
	if got := loaded(t, path).Since(0); len(got) == 0 || got[len(got)-1].Seq != want[len(want)-1].Seq-1 {
		t.Errorf("of a file that was cut: %d entries", len(got))
	}
}

// An entry is in the file soon after it was added, without an end of the process.
func TestEventsAreKeptAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	j := New()
	defer keeping(t, j, path)()
	j.Add(Entry{Scope: "ib0", Kind: KindNote, Text: "now"})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if text, _ := os.ReadFile(path); strings.Contains(string(text), `"now"`) {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the entry is not in the file")
		}
	}
}

// However long the text of an event is, the file with it can be read.
func TestLongTextIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	j := New()
	end := keeping(t, j, path)
	for _, text := range []string{strings.Repeat("\x01", 1<<20), strings.Repeat("ä", 1<<20), "short"} {
		j.Add(Entry{Scope: "ib0", Kind: KindNote, Text: text, Time: at(0)})
	}
	end()
	got := loaded(t, path).Since(0)
	if len(got) != 3 || got[2].Text != "short" || len(got[0].Text) != maxText+3 || !utf8.ValidString(got[1].Text) {
		t.Errorf("%d entries", len(got))
	}
}

// An entry that is longer than any of ours ends the reading, and is reported.
func TestLongEntry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	if err := os.WriteFile(path, []byte(`{"seq":1,"text":"short"}`+"\n"+`{"seq":2,"text":"`+strings.Repeat("x", maxLine)+`"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	j := New()
	if err := j.Load(path); !errors.Is(err, bufio.ErrTooLong) {
		t.Error(err)
	}
	if got := j.Since(0); len(got) != 1 || got[0].Text != "short" {
		t.Errorf("%+v", got)
	}
}

// A file that others may write, and anything that is not a regular file, are refused.
func TestForeignHistoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	open, link := filepath.Join(dir, "open"), filepath.Join(dir, "link")
	if err := os.WriteFile(open, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(open, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{open, link, dir} {
		if err := New().Load(path); err == nil {
			t.Errorf("%s was read", path)
		}
	}
}
