package memlock

import (
	"bytes"
	"fmt"
	"os"
)

// Usage of memory, in bytes.
type Usage struct {
	Locked   int64 // address space that is locked, whether filled or not
	Resident int64 // memory
}

// Read reads the usage of the process, from a file of /proc.
func Read() (Usage, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return Usage{}, err
	}
	return parseUsage(text)
}

func parseUsage(status []byte) (u Usage, err error) {
	if u.Locked, err = kibibytes(status, "VmLck"); err != nil {
		return Usage{}, err
	}
	if u.Resident, err = kibibytes(status, "VmRSS"); err != nil {
		return Usage{}, err
	}
	return u, nil
}

// kibibytes finds a line such as "VmLck:	  1024 kB".
func kibibytes(status []byte, field string) (int64, error) {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte(field+":")); ok {
			var n int64
			if _, err := fmt.Sscanf(string(rest), "%d kB", &n); err != nil {
				return 0, fmt.Errorf("read %s: %w", field, err)
			}
			return n << 10, nil
		}
	}
	return 0, fmt.Errorf("read %s: no such line", field)
}
