package cni

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// PluginName is the type of the plugin in a configuration, and the name of its file.
const PluginName = "ipoibd"

// Install copies this program into the directory of a node's CNI plugins, and creates that if necessary. It
// replaces an earlier copy atomically, so a runtime never starts half a file, and a plugin that is running is not disturbed.
func Install(dir string) (err error) {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer from.Close()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("install the plugin: %w", err)
	}
	to, err := os.CreateTemp(dir, "."+PluginName+".*")
	if err != nil {
		return fmt.Errorf("install the plugin: %w", err)
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Chmod(0o755), to.Sync(), to.Close()); err == nil {
		err = os.Rename(to.Name(), filepath.Join(dir, PluginName))
	}
	if err != nil {
		return fmt.Errorf("install the plugin: %w", errors.Join(err, os.Remove(to.Name())))
	}
	return nil
}
