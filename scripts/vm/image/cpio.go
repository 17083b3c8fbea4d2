package image

import (
	"fmt"
	"io"
)

// Types of files (sys/stat.h).
const (
	kindFile    = 0o100000
	kindDir     = 0o040000
	kindSymlink = 0o120000
)

// trailer is the name of the last entry of an archive.
const trailer = "TRAILER!!!"

// align is the alignment of names (with their header) and of data, in bytes.
const align = 4

// writeEntry writes one entry. All files belong to root and have one link, so inode
// numbers have no meaning, and the time 0.
func writeEntry(w io.Writer, name string, mode uint32, data []byte) error {
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	for _, part := range [][]byte{[]byte(header), data} {
		if _, err := w.Write(part); err != nil {
			return err
		}
		if _, err := w.Write(make([]byte, -len(part)&(align-1))); err != nil {
			return err
		}
	}
	return nil
}
