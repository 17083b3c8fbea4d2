package rdma

import (
	"fmt"
	"io/fs"

	"ipoibd/hca"
)

// noting is a file system that records the first error that is [hca.Exhausted]. Readers
// of optional attributes skip what they cannot read; a caller that needs all of them
// calls noted afterwards. It belongs to one goroutine.
type noting struct {
	fs.FS
	err error
}

// noted returns the recorded error, which wraps [hca.ErrNoMemory], or nil.
func (n *noting) noted() error {
	if n.err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", hca.ErrNoMemory, n.err)
}

func (n *noting) note(err error) error {
	if n.err == nil && hca.Exhausted(err) {
		n.err = err
	}
	return err
}

// Open implements [fs.FS].
func (n *noting) Open(name string) (fs.File, error) {
	f, err := n.FS.Open(name)
	if err != nil {
		return nil, n.note(err)
	}
	return &notingFile{f, n}, nil
}

// ReadDir implements [fs.ReadDirFS].
func (n *noting) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(n.FS, name)
	return entries, n.note(err)
}

// Stat implements [fs.StatFS].
func (n *noting) Stat(name string) (fs.FileInfo, error) {
	info, err := fs.Stat(n.FS, name)
	return info, n.note(err)
}

// ReadLink implements [fs.ReadLinkFS].
func (n *noting) ReadLink(name string) (string, error) {
	target, err := fs.ReadLink(n.FS, name)
	return target, n.note(err)
}

// Lstat implements [fs.ReadLinkFS].
func (n *noting) Lstat(name string) (fs.FileInfo, error) {
	info, err := fs.Lstat(n.FS, name)
	return info, n.note(err)
}

// notingFile is a file of a noting.
type notingFile struct {
	fs.File
	notes *noting
}

// Read implements [fs.File].
func (f *notingFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	return n, f.notes.note(err)
}
