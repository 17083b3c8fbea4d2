package journal

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
)

const (
	// maxLines bounds the file, in entries: then it is rewritten with the entries of the ring.
	maxLines = 2 * Size
	// maxKept and maxLine bound what is read of the file and of an entry, in bytes. An entry has some hundred;
	// the longest text (maxText) takes six times its length if each byte is escaped.
	maxKept = 16 << 20
	maxLine = 64 << 10
)

// Load restores an empty journal from the file of another process's Keeper, if there is
// one. Errors: the file cannot be read, or another user than root may have written it.
func (j *Journal) Load(path string) error {
	f, err := kernel.OpenPrivate(unix.AT_FDCWD, path, unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxKept))
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e Entry
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			return nil // the process or the machine stopped while it wrote
		}
		j.Restore([]Entry{e})
	}
	return lines.Err()
}

// Keeper creates a file with the present entries, in place of a former process's. The function that it returns writes
// each new entry to the file until ctx ends, so that events outlive the process. It logs why it cannot.
func (j *Journal) Keeper(path string, log *slog.Logger) func(ctx context.Context) {
	f, err := j.create(path)
	return func(ctx context.Context) {
		if err == nil {
			err = j.keep(ctx, f)
		}
		if err != nil {
			log.Warn("events are not written to a file, so a crash would lose them", "err", err)
		}
	}
}

// create creates the file that keep writes to.
func (j *Journal) create(path string) (*os.File, error) {
	return kernel.Replace(path, func(f *os.File) error { return writeLines(f, j.Since(0)) })
}

// keep writes the journal to a file, and then each new entry, until ctx ends. Then it closes the file. It opens none,
// since a reset may be under way (R17), and it blocks for as long as the file system does, which never delays Add.
func (j *Journal) keep(ctx context.Context, f *os.File) (err error) {
	defer func() { err = errors.Join(err, f.Close()) }()
	for last, lines := uint64(0), maxLines; ; {
		entries, ended := j.Wait(ctx, last)
		if ended != nil {
			entries = j.Since(last)
		}
		if lines += len(entries); lines > maxLines {
			entries = j.Since(0)
			lines = len(entries)
			// What is left behind the new entries if the process is killed now has lower numbers, and is
			// not restored.
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				return err
			}
		}
		if err := writeLines(f, entries); err != nil {
			return err
		}
		end, err := f.Seek(0, io.SeekCurrent)
		if err == nil {
			err = f.Truncate(end)
		}
		if err != nil {
			return err
		}
		if ended != nil {
			return nil
		}
		last = entries[len(entries)-1].Seq
	}
}

func writeLines(f *os.File, entries []Entry) error {
	var text bytes.Buffer
	for _, e := range entries {
		if err := json.NewEncoder(&text).Encode(e); err != nil {
			return err
		}
	}
	if text.Len() == 0 {
		return nil
	}
	_, err := f.Write(text.Bytes())
	return err
}
