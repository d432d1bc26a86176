package sparkjobs;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Writes the files of a query's checkpoint into S3, each with one PUT. Spark's own way is a temporary file and a rename, which in S3 is a
 * copy and a deletion, and looks before and after. An object appears when its stream is closed, so no reader sees a part of it.
 *
 * A checkpoint in S3 has one writer: the query of the attempt that the work directory belongs to.
 *
 * Spark's Janino compiles this file, so it has no generics and no multi-catch.
 */
public class DirectCheckpointFiles extends FileSystemBasedCheckpointFileManager {
    private final FileSystem files;

    public DirectCheckpointFiles(Path path, Configuration conf) throws IOException {
        super(path, conf);
        files = path.getFileSystem(conf);
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
        try {
            FSDataOutputStreamBuilder builder = files.createFile(path);
            builder.create();
            builder.overwrite(true);
            builder.recursive();
            builder.opt("fs.s3a.create.performance", "true");
            return new ObjectStream((FSDataOutputStream) builder.build());
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** S3 has no directories. */
    public void mkdirs(Path path) {}

    /** A directory without files is missing. */
    public FileStatus[] list(Path path, PathFilter filter) {
        try {
            return files.listStatus(path, filter);
        } catch (FileNotFoundException missing) {
            return new FileStatus[0];
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** A stream whose object appears when it is closed, and never if it was cancelled before. */
    public static class ObjectStream extends CheckpointFileManager.CancellableFSDataOutputStream {
        private final FSDataOutputStream out;
        private boolean ended;

        public ObjectStream(FSDataOutputStream out) {
            super(out);
            this.out = out;
        }

        public void close() throws IOException {
            if (!ended) {
                ended = true;
                out.close();
            }
        }

        public void cancel() {
            if (!ended) {
                ended = true;
                out.abort();
            }
        }
    }
}
