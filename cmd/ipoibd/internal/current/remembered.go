package current

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/link"
	"ipoibd/link/kernel"
)

// maxMemory bounds the file of remembered interfaces, in bytes: thousands fit.
const maxMemory = 16 << 20

// memoryOf returns the path of the file that remembers the interfaces added at run time: a JSON list
// of their requests. It is beside the control socket, and so does not survive a restart of the
// machine. Neither do the interfaces.
func memoryOf(control string) string {
	return strings.TrimSuffix(control, ".sock") + ".interfaces.json"
}

// remember writes the file. c.changing is held, or the daemon does not serve yet.
func (c *Current) remember() error {
	for _, f := range c.cfg.Interfaces {
		delete(c.left, f.Name)
	}
	requests := slices.Collect(maps.Values(c.left))
	for _, f := range c.cfg.Interfaces {
		if c.cfg.Runtime(f.Name) && !c.opts.Forget {
			requests = append(requests, json.RawMessage(c.cfg.Added[f.Name].Request))
		}
	}
	if err := replaceFile(memoryOf(c.cfg.Control), requests); err != nil {
		return fmt.Errorf("%w; this change will be lost on restart", err)
	}
	return nil
}

// replaceFile replaces the file atomically. Without requests, it removes the file.
func replaceFile(path string, requests []json.RawMessage) error {
	if len(requests) == 0 {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.Marshal(requests)
	if err != nil {
		return err
	}
	file, err := kernel.Replace(path, func(f *os.File) error { _, err := f.Write(text); return err })
	if err != nil {
		return err
	}
	return file.Close()
}

// TakeBack adopts the interfaces that were added to an earlier daemon at run time, each where that
// daemon left it. One that no longer exists is forgotten: its pod has ended, or it was removed while no
// daemon ran. Any other that cannot be adopted, such as one whose namespace this process does not see, stays in the
// file, for the next start, until it is added again or removed. The daemon does not serve yet.
func (c *Current) TakeBack() {
	path := memoryOf(c.cfg.Control)
	requests, err := readMemory(path)
	if err != nil {
		kept := path + ".unreadable"
		c.opts.Log.Error("cannot read the saved interfaces, so they are not served: "+
			"add them again (restart the pods); renamed their file",
			"name", kept, "err", errors.Join(err, os.Rename(path, kept)))
		return
	}
	c.left = map[string]json.RawMessage{}
	for _, r := range requests {
		_, err := c.apply(c.running, func(now *config.Config) (*config.Config, error) {
			next, err := now.WithRuntime(r)
			if err == nil {
				next.Added[ask(r).Name] = config.Addition{Request: string(r), Existing: true}
			}
			return next, err
		})
		switch {
		case c.running.Err() != nil:
			return // the file stays as it is
		case errors.Is(err, link.ErrNotFound), errors.Is(err, link.ErrNoNamespace) && !hidden(ask(r).Netns):
			c.opts.Log.Info("saved interface no longer exists; removing it from the list", "err", err)
		case err != nil:
			c.opts.Log.Error("cannot take back a saved interface; the next start retries",
				"request", string(r), "err", err)
			c.left[ask(r).Name] = r
		}
	}
	if len(requests) > 0 {
		c.logSaveError(c.remember())
	}
}

func (c *Current) logSaveError(err error) {
	if err != nil {
		c.opts.Log.Error("cannot save the interfaces that were added at run time", "err", err)
	}
}

// asked is what a request asks for, as far as package current needs it.
type asked struct {
	Name  string `json:"name"`
	Netns string `json:"netns"`
}

// ask reads a request. Fields that are missing or no text are "".
func ask(request json.RawMessage) (a asked) {
	_ = json.Unmarshal(request, &a)
	return a
}

// hidden reports whether a namespace that is not found may only be out of sight of this process: in a container, for
// example, /run/netns may be missing, or have the files of the namespaces without the namespaces mounted on them.
func hidden(netns string) bool {
	if _, err := os.Lstat(netns); err == nil {
		return true
	}
	_, err := os.Stat(filepath.Dir(netns))
	return errors.Is(err, fs.ErrNotExist) && !strings.HasPrefix(netns, "/proc/")
}

// readMemory reads the file. It refuses one that another user, except root, may have written.
func readMemory(path string) (requests []json.RawMessage, err error) {
	file, err := kernel.OpenPrivate(unix.AT_FDCWD, path, unix.O_RDONLY)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxMemory))
	if err == nil {
		err = json.Unmarshal(text, &requests)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return requests, nil
}
