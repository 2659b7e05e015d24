import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Commands of the released mqadmin in one process.
 *
 * java AdminCommands NAMESRV FILE   runs each line of the file as a command and prints "== LINE", then what it printed.
 * java AdminCommands NAMESRV names  prints the names of all commands.
 */
public class AdminCommands {
    static final long COMMAND_MILLISECONDS = Long.getLong("command.milliseconds", 120_000L);

    public static void main(String[] arguments) throws Exception {
        Path home = Path.of(System.getProperty("user.home"));
        Files.createDirectories(home.resolve("conf"));
        Files.writeString(home.resolve("conf/logback_tools.xml"), "<configuration/>");
        if (arguments[1].equals("names")) {
            names();
            System.exit(0);
        }
        System.setProperty("rocketmq.home.dir", home.toString());
        System.setProperty("rocketmq.namesrv.addr", arguments[0]);
        PrintStream out = System.out;
        for (String line : Files.readAllLines(Path.of(arguments[1]))) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream stream = new PrintStream(printed, true);
            System.setOut(stream);
            System.setErr(stream);
            Thread command = new Thread(() -> {
                try {
                    MQAdminStartup.main0(line.split(" "), null);
                } catch (Throwable cause) {
                    stream.println("thrown " + cause);
                }
            });
            command.setDaemon(true);
            command.start();
            command.join(COMMAND_MILLISECONDS);
            System.setOut(out);
            if (command.isAlive()) {
                out.println("== endless " + line);
            }
            out.println("== " + line);
            out.println(printed);
        }
        System.exit(0);
    }

    /** The names of all commands of this release. */
    static void names() throws Exception {
        Method made = MQAdminStartup.class.getDeclaredMethod("initCommand");
        made.setAccessible(true);
        made.invoke(null);
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Collection.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                for (Object command : (Collection<?>) field.get(null)) {
                    System.out.println(((SubCommand) command).commandName());
                }
            }
        }
    }
}
